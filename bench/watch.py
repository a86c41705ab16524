"""Memory of a command and all its descendants, sampled from outside: the peak PSS of each process and of all together.

    python watch.py COMMAND ARGUMENT…

PSS (proportional set size) counts a page shared by n processes as 1/n, so that shared memory is neither forgotten nor
counted twice. Reading it makes the kernel walk the page tables, so a run that is watched is not timed.
"""
import os
import subprocess
import sys
import threading
import time

INTERVAL = 0.05
MOST_RANKS = 64


def parents():
    """The parent of every process, by its id."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                # The name of the program, in brackets, may hold anything.
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    return found


def descendants(root):
    parent = parents()
    tree, grown = {root}, True
    while grown:
        more = {child for child, of in parent.items() if of in tree and child not in tree}
        tree, grown = tree | more, bool(more)
    return tree


def pss_kb(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Watch(threading.Thread):
    """Samples until `stop`."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.ended = root, threading.Event()
        self.peaks_kb, self.total_kb, self.n_samples = {}, 0, 0
        # The largest processes of each moment, in order.
        self.moments = []

    def run(self):
        while not self.ended.wait(INTERVAL):
            sizes = {pid: pss_kb(pid) for pid in descendants(self.root)}
            for pid, size in sizes.items():
                self.peaks_kb[pid] = max(size, self.peaks_kb.get(pid, 0))
            self.total_kb = max(self.total_kb, sum(sizes.values()))
            self.moments.append(sorted(sizes.values(), reverse=True)[:MOST_RANKS])
            self.n_samples += 1

    def stop(self):
        self.ended.set()
        self.join()

    def of_ranks_mb(self, n_ranks):
        """The peaks of the largest processes, as many as there are ranks; launchers are smaller. Moments in which a rank
        is not there any more do not count: those that are left are charged for the pages that they shared with it."""
        moments = [moment for moment in self.moments if len(moment) >= n_ranks]
        least = max((moment[n_ranks - 1] for moment in moments), default=0)
        all_there = [moment for moment in moments if moment[n_ranks - 1] >= 0.9 * least]
        return [max(moment[rank] for moment in all_there) / 1024 for rank in range(n_ranks)] if all_there else []


def main():
    begin = time.perf_counter()
    process = subprocess.Popen(sys.argv[1:])
    watch = Watch(process.pid)
    watch.start()
    code = process.wait()
    watch.stop()
    for pid, size in sorted(watch.peaks_kb.items()):
        print(f"process {pid}: peak PSS {size / 1024:.1f} MB", file=sys.stderr)
    print(f"together: peak PSS {watch.total_kb / 1024:.1f} MB in {watch.n_samples} samples "
          f"over {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
