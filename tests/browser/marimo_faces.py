"""A marimo notebook with the faces; WORKBENCH_STORE names the store, whose last run is shown."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import workbench_widgets as faces

    import workbench as wb

    return faces, wb


@app.cell
def _(faces, wb):
    faces.RunDashboard(wb.attach("last"))


@app.cell
def _(faces):
    faces.MemoryCalculator(gpus=8, strategy="fsdp")


@app.cell
def _(faces):
    faces.CostCalculator(model="llama-3-8b", gpus=8, strategy="fsdp", tokens="100B")


@app.cell
def _(faces):
    faces.Planner(model="llama-3.2-1b", tokens="5B")


@app.cell
def _(faces):
    faces.StrategyPicker()


@app.cell
def _(faces):
    faces.Runs()


@app.cell
def _(faces):
    faces.Compare()


if __name__ == "__main__":
    app.run()
