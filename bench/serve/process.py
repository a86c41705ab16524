"""What the system says of a process: its memory, its threads and its open files."""

import os


class Process:
    """A process that is observed from outside."""

    def __init__(self, pid):
        self.folder = f"/proc/{pid}"
        if not os.path.isdir(self.folder):
            raise SystemExit(f"there is no process {pid}")

    def memory_mb(self):
        """What of it lies in memory, in MiB."""
        with open(f"{self.folder}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def n_threads(self):
        return len(os.listdir(f"{self.folder}/task"))

    def n_files(self):
        return len(os.listdir(f"{self.folder}/fd"))
