"""The process that loads torch and the model: started by `process.ModelProcess`, ends with it."""
