"""What a page shows of a store and may ask of it: in a notebook over the comm, else over HTTP.

The faces of `workbench_widgets` and the server of ``workbench ui`` answer the same JavaScript with
what stands here; the server itself is in `pages.server`.
"""
