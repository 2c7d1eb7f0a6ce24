"""Which tests one process runs, where several share them out."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling


class FilesTogether(LoadScopeScheduling):
    """The tests of a file stay together, so that what it sets up is set up once; so do all that are about Ray."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return "ray" if PurePosixPath(file).name.startswith("test_ray") else file
