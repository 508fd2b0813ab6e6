"""Runs on object stores and network volumes: pushed, pulled, and mirrored while they train.

All bytes go through `remote.Remote` (fsspec): ``s3://``, ``gs://``, ``https://`` (read only),
``file://`` and plain folders. Credentials are those that the store's own library finds in the
environment; an address that holds some is refused. What is transferred is kept in pieces named by
their SHA-256, and a manifest that is written last says which pieces are which file of the run.
"""
