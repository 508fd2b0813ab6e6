"""What a person may ask of a recipe while it trains: the workbench's hook answers in its place."""


def asked_to(action: str) -> bool:
    """Whether to do `action` ("evaluate") after this step; without the hook, never."""
    del action
    return False
