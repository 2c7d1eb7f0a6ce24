"""Which tests one process runs, where several share them out."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {"test_ray*.py": "ray", "tests/studies/benzing2020/*.py": "paper"}
"""Files that share what takes long to set up, Ray or the paper's runs, which is then set up once."""

FIRST = (
    "tests/distributed/test_processes.py",
    "paper",
    "ray",
    "tests/docs/test_site.py",
    "tests/examples/test_extending.py",
    "tests/lab/experiments/test_reliability.py",
    "tests/lab/cli/test_process.py",
    "tests/lab/cli/test_search.py",
    "tests/integrations/test_huggingface_examples.py",
    "tests/distributed/test_example.py",
)
"""What takes long, the longest first: begun late, it would leave all other processes idle at the end.

The rest comes by how many tests a file has, so these would be among the last: their tests are few and long.
"""


class FilesTogether(LoadScopeScheduling):
    """The tests of a file stay together, so that what it sets up is set up once; so do some files."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return next((name for files, name in TOGETHER.items() if PurePosixPath(file).match(files)), file)

    def _assign_work_unit(self, node):
        first = next((scope for scope in FIRST if scope in self.workqueue), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
