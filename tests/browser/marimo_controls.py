"""A marimo notebook with the faces that ipywidgets' controls are part of; WORKBENCH_STORE: the store."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import workbench_widgets as faces

    return (faces,)


@app.cell
def _(faces):
    faces.Workbench(open=None)


@app.cell
def _(faces):
    faces.FaultLab()


@app.cell
def _(faces):
    faces.Launcher()


if __name__ == "__main__":
    app.run()
