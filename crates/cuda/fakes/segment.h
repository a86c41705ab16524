// What the ranks of a communicator of the fake NCCL share: memory without a name, which ends with the last who has it open.
//
// Its file is in memory alone. Others open it through the process that made it, so nothing is left behind, however a
// process ends. Each rank holds a lock on the file, which the system takes from it when it ends: that is how others know.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>

namespace fake {

typedef unsigned long long u64;
typedef std::atomic<u64> Counter;

const int MOST_RANKS = 8;
// Little, so that what tests send does not fit.
const u64 RING_BYTES = 1 << 14;

// What ncclUniqueId begins with.
struct Id {
  char magic[16];
  int process, file;
  u64 token;
};

// Bytes from one rank to another, and how far each needs the other to go.
struct Ring {
  Counter written, read, want_written, want_read;
  char bytes[RING_BYTES];

  // As many as fit; how many those were.
  u64 push(const char* from, u64 n) {
    u64 at = written, space = RING_BYTES - (at - read);
    if (n > space) n = space;
    for (u64 i = 0; i < n; i++) bytes[(at + i) % RING_BYTES] = from[i];
    written = at + n;
    return n;
  }
  u64 pull(char* to, u64 n) {
    u64 at = read, there = written - at;
    if (n > there) n = there;
    for (u64 i = 0; i < n; i++) to[i] = bytes[(at + i) % RING_BYTES];
    read = at + n;
    return n;
  }
};

enum Presence { ABSENT, HERE, FINALIZING, LEFT };

// What a rank says to its communicator when that is split, each time with the next number.
struct Choice {
  int color, key;
  Counter number;
  // Of the first rank of a color: where the new communicator is.
  Id id;
  Counter made;
};

struct Shared {
  u64 token;
  std::atomic<int> world;
  struct {
    std::atomic<int> presence;
    char bus[16];
  } ranks[MOST_RANKS];
  Choice choices[2][MOST_RANKS];
  // From, to.
  Ring rings[MOST_RANKS][MOST_RANKS];
};

class Segment {
  int file;

  static std::map<u64, int>& kept() {
    static std::map<u64, int> files;
    return files;
  }
  static std::atomic<int>& count() {
    static std::atomic<int> n;
    return n;
  }
  static struct flock lock_of(int rank) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
  }
  Segment(int file, Shared* shared) : file(file), shared(shared) { count()++; }

 public:
  Shared* const shared;

  ~Segment() {
    munmap(shared, sizeof(Shared));
    close(file);
    count()--;
  }

  // New memory, which stays open until `forget`.
  static bool make(Id* id) {
    std::random_device random;
    *id = {"fake nccl", getpid(), memfd_create("oarlock-fake-nccl", MFD_CLOEXEC), (u64)random() << 32 | random()};
    if (id->file < 0 || ftruncate(id->file, sizeof(Shared))) return false;
    if (pwrite(id->file, &id->token, sizeof id->token, 0) != sizeof id->token) return false;
    kept()[id->token] = id->file;
    return true;
  }
  // All ranks have it open now, or never will.
  static void forget(const Id& id) {
    auto found = kept().find(id.token);
    if (found == kept().end()) return;
    close(found->second);
    kept().erase(found);
  }
  // How many are open.
  static int alive() { return count() + (int)kept().size(); }

  // Null where the process that made it is gone.
  static std::unique_ptr<Segment> open(const Id& id) {
    if (strncmp(id.magic, "fake nccl", sizeof id.magic)) return nullptr;
    std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
    int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    u64 token = 0;
    if (pread(file, &token, sizeof token, 0) == sizeof token && token == id.token) {
      void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (at != MAP_FAILED) return std::unique_ptr<Segment>(new Segment(file, (Shared*)at));
    }
    close(file);
    return nullptr;
  }

  // False where somebody else is this rank.
  bool become(int rank) {
    struct flock lock = lock_of(rank);
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
  }
  // Whether another rank was here and ended without having left.
  bool is_dead(int rank) {
    int presence = shared->ranks[rank].presence;
    struct flock lock = lock_of(rank);
    if (presence != HERE && presence != FINALIZING) return false;
    if (fcntl(file, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK) return false;
    // It may have left since.
    return shared->ranks[rank].presence != LEFT;
  }
};

}  // namespace fake
