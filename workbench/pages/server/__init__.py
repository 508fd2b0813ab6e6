"""``workbench ui``: the dashboards of a store without Jupyter, by the standard library's server.

The JavaScript is that of the notebook's faces: plain modules, found beside the installed package
`workbench_widgets` without importing it, which needs Jupyter's libraries. So the page works with
the base install; plotly.js comes from the package plotly, where that is installed.

What may be asked of it by whom is in `access`; what each address answers in `routes`.
"""
