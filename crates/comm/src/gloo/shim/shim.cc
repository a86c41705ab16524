// A flat interface to what Oarlock uses of Gloo: messages over its TCP transport. No exception leaves a function.
//
// Sockets come connected: Oarlock connects the ranks itself, so that each connection is proved before Gloo sees it, and
// nothing of Gloo listens. A pair of Gloo takes over such a socket, as it takes one from its own listener.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace {

namespace tcp = gloo::transport::tcp;

constexpr int PENDING = 0, DONE = 1, BROKEN = -1;

// Longer than any run: how long to wait is not for Gloo to decide, which would close all connections.
constexpr std::chrono::milliseconds NEVER = std::chrono::hours(24 * 365);

void say(char* error, size_t bytes, const char* text) {
  if (bytes > 0) {
    std::strncpy(error, text, bytes - 1);
    error[bytes - 1] = 0;
  }
}

// Seals or opens a record: length, bytes, proof.
using RecordCall = int (*)(void* sealed, uint8_t* record, size_t bytes);

// What encrypts a connection. Without `of` it is plain.
struct Sealing {
  void* of;
  RecordCall seal;
  RecordCall open;
};

// A connection whose socket was connected and proved before. If it is sealed, the bytes that Gloo writes and reads travel in
// records, and Gloo sees none whose proof is wrong.
class ProvedPair final : public tcp::Pair {
  static constexpr size_t HEAD = 4, PROOF = 16;
  // The most bytes of a record: copies of it stay in the cache.
  static constexpr size_t MOST = 64 << 10;
  // The record of a message without bytes. Reading as much at first takes most small records with one call.
  static constexpr size_t SMALL = HEAD + sizeof(tcp::Op::preamble) + PROOF;

 public:
  ProvedPair(tcp::Context* context, tcp::Device* device, int rank, int fd, Sealing sealing)
      : tcp::Pair(context, device, rank, NEVER), sealing_(sealing) {
    std::lock_guard<std::mutex> lock(m_);
    // Gloo of 2022 listens at once, here at a loopback address; what has come meanwhile is not wanted.
    if (fd_ >= 0) {
      device_->unregisterDescriptor(fd_, this);
      ::close(fd_);
      fd_ = -1;
    }
    if (ex_ != nullptr || state_ == CLOSED) throw std::runtime_error("a new pair is closed");
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) throw std::runtime_error(std::strerror(errno));
    sockaddr_storage end;
    socklen_t length = sizeof(end);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&end), &length) == 0) peer_ = tcp::Address(end);
    fd_ = fd;
    rx_ = tcp::Op();
    changeState(CONNECTED);
    device_->registerDescriptor(fd_, EPOLLIN, this);
  }

  // Nothing more is sent.
  void half_close() {
    std::lock_guard<std::mutex> lock(m_);
    if (state_ == CONNECTED) ::shutdown(fd_, SHUT_WR);
  }

 protected:
  // Writes a message as far as the socket takes it; whether it is written. The lock is held, as in all of these.
  bool write(tcp::Op& op) override {
    if (sealing_.of == nullptr) return tcp::Pair::write(op);
    if (state_ == CLOSED) return false;
    const auto opcode = op.getOpcode();
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
    if (opcode == tcp::Op::SEND_UNBOUND_BUFFER) {
      buffer = gloo::NonOwningPtr<tcp::UnboundBuffer>(op.ubuf);
      if (!buffer) return false;
    }
    for (;;) {
      if (!flush()) return false;
      if (op.nwritten == op.preamble.nbytes) break;
      if (!seal(op, buffer)) return false;
    }
    writeComplete(op, buffer, opcode);
    return true;
  }

  // Reads a message as far as it is here; whether it is whole.
  bool read() override {
    if (sealing_.of == nullptr) return tcp::Pair::read();
    if (state_ == CLOSED) return false;
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
    for (;;) {
      iovec to = {nullptr, 0};
      const ssize_t wanted = prepareRead(rx_, buffer, to);
      if (wanted < 0) return false;
      if (wanted == 0) break;
      if (opened_ == 0 && !receive()) return false;
      const size_t bytes = std::min(to.iov_len, opened_);
      std::memcpy(to.iov_base, in_.data() + at_, bytes);
      rx_.nread += bytes;
      at_ += bytes;
      opened_ -= bytes;
    }
    readComplete(buffer);
    return true;
  }

 private:
  // Seals the next bytes of a message.
  bool seal(tcp::Op& op, const gloo::NonOwningPtr<tcp::UnboundBuffer>& buffer) {
    iovec from[2];
    int parts = 0;
    prepareWrite(op, buffer, from, parts);
    size_t bytes = 0;
    out_.resize(HEAD + MOST + PROOF);
    for (int part = 0; part < parts; part++) {
      const size_t more = std::min(from[part].iov_len, MOST - bytes);
      std::memcpy(out_.data() + HEAD + bytes, from[part].iov_base, more);
      bytes += more;
    }
    const uint32_t length = static_cast<uint32_t>(bytes);
    std::memcpy(out_.data(), &length, HEAD);
    sent_ = 0;
    to_send_ = HEAD + bytes + PROOF;
    if (sealing_.seal(sealing_.of, out_.data(), to_send_) == 0) {
      signalException("a record cannot be sealed");
      return false;
    }
    op.nwritten += bytes;
    return true;
  }

  // Sends what is sealed; whether nothing is left.
  bool flush() {
    while (sent_ < to_send_) {
      const ssize_t sent = ::send(fd_, out_.data() + sent_, to_send_ - sent_, MSG_NOSIGNAL);
      if (sent >= 0) {
        sent_ += static_cast<size_t>(sent);
      } else if (errno == EAGAIN || errno == ECONNRESET || errno == EPIPE) {
        // That the connection is broken is found where it is read, as Gloo does.
        return false;
      } else if (errno != EINTR) {
        signalException("send " + peer_.str() + ": " + std::strerror(errno));
        return false;
      }
    }
    return true;
  }

  // Receives and opens the next record; false where it is not whole yet, or never will be.
  bool receive() {
    if (in_.empty()) in_.resize(HEAD + MOST + PROOF + SMALL);
    if (at_ > 0) {
      // What was read behind the last record, which is less than a small one.
      const size_t behind = at_ + PROOF;
      std::memmove(in_.data(), in_.data() + behind, here_ - behind);
      here_ -= behind;
      at_ = 0;
    }
    size_t whole = 0;
    for (;;) {
      if (here_ >= HEAD) {
        uint32_t length = 0;
        std::memcpy(&length, in_.data(), HEAD);
        if (length == 0 || length > MOST) return lose(" has a wrong proof");
        whole = HEAD + length + PROOF;
        if (here_ >= whole) break;
      }
      const size_t wanted = whole == 0 ? SMALL : whole;
      const ssize_t got = ::recv(fd_, in_.data() + here_, wanted - here_, 0);
      if (got > 0) {
        here_ += static_cast<size_t>(got);
      } else if (got == 0) {
        signalException("Connection closed by peer " + peer_.str());
        return false;
      } else if (errno == EAGAIN) {
        return false;
      } else if (errno != EINTR) {
        signalException("Read error " + peer_.str() + ": " + std::strerror(errno));
        return false;
      }
    }
    if (sealing_.open(sealing_.of, in_.data(), whole) == 0) return lose(" has a wrong proof");
    at_ = HEAD;
    opened_ = whole - HEAD - PROOF;
    return true;
  }

  bool lose(const char* how) {
    signalException("a record of " + peer_.str() + how);
    return false;
  }

  const Sealing sealing_;
  // The record that is being sent, and what of it is.
  std::vector<uint8_t> out_;
  size_t sent_ = 0, to_send_ = 0;
  // What was received: bytes that are here, and where those begin, and how many they are, that are opened and not taken.
  std::vector<uint8_t> in_;
  size_t here_ = 0, at_ = 0, opened_ = 0;
};

// A buffer with one message, whose state can be asked for without waiting.
class Message final : public tcp::UnboundBuffer {
 public:
  Message(const std::shared_ptr<tcp::Context>& context, void* at, size_t bytes, bool receives)
      : tcp::UnboundBuffer(context, at, bytes), receives_(receives) {}

  int state(char* error, size_t bytes) {
    std::lock_guard<std::mutex> lock(m_);
    if (completions() > 0) return DONE;
    if (ex_ == nullptr) return PENDING;
    try {
      std::rethrow_exception(ex_);
    } catch (const std::exception& e) {
      say(error, bytes, e.what());
    } catch (...) {
      say(error, bytes, "an unknown exception");
    }
    return BROKEN;
  }

  void wait(std::chrono::microseconds limit) {
    std::unique_lock<std::mutex> lock(m_);
    (receives_ ? recvCv_ : sendCv_).wait_for(lock, limit, [&] { return completions() > 0 || ex_ != nullptr; });
  }

 private:
  int completions() const { return receives_ ? recvCompletions_ : sendCompletions_; }
  const bool receives_;
};

struct World {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<tcp::Context> context;
};

std::shared_ptr<gloo::transport::Device> loopback_or(const char* address) {
  try {
    return tcp::CreateDevice(tcp::attr("127.0.0.1"));
  } catch (const std::exception&) {
    // This network namespace has no loopback interface.
    return tcp::CreateDevice(tcp::attr(address));
  }
}

template <typename Result, typename Call>
Result guarded(Result failed, char* error, size_t bytes, Call call) {
  try {
    return call();
  } catch (const std::exception& e) {
    say(error, bytes, e.what());
  } catch (...) {
    say(error, bytes, "an unknown exception");
  }
  return failed;
}

}  // namespace

extern "C" {

// The world of `size` ranks; `fds` has a connected socket for each other rank, which belong to Gloo from now on, and `sealed`
// what encrypts it, or null. Null with a text in `error` where it fails. It is never freed.
void* oarlock_gloo_open(
    int rank, int size, const int* fds, void* const* sealed, RecordCall seal, RecordCall open, const char* address,
    char* error, size_t bytes) {
  return guarded<void*>(nullptr, error, bytes, [&]() -> void* {
    auto world = std::make_unique<World>();
    world->device = loopback_or(address);
    world->context = std::static_pointer_cast<tcp::Context>(world->device->createContext(rank, size));
    world->context->setTimeout(NEVER);
    auto* device = static_cast<tcp::Device*>(world->device.get());
    for (int peer = 0; peer < size; peer++) {
      if (peer == rank) continue;
      auto pair = std::make_unique<ProvedPair>(world->context.get(), device, peer, fds[peer], Sealing{sealed[peer], seal, open});
      world->context->getPair(peer) = std::move(pair);
    }
    return world.release();
  });
}

// Begins to send or to receive; null with a text in `error` where the connection is broken.
void* oarlock_gloo_begin(
    void* to, int receives, int peer, uint64_t slot, void* at, size_t length, char* error, size_t bytes) {
  return guarded<void*>(nullptr, error, bytes, [&]() -> void* {
    auto* world = static_cast<World*>(to);
    auto message = std::make_unique<Message>(world->context, at, length, receives != 0);
    if (receives != 0) {
      message->recv(peer, slot, 0, length);
    } else {
      message->send(peer, slot, 0, length);
    }
    return message.release();
  });
}

// 1: done; 0: not yet; -1: the connection is broken, with a text in `error`.
int oarlock_gloo_poll(void* message, char* error, size_t bytes) {
  return guarded<int>(BROKEN, error, bytes, [&] { return static_cast<Message*>(message)->state(error, bytes); });
}

// Waits until the message is done or broken, at most for so long.
void oarlock_gloo_wait(void* message, uint64_t microseconds) {
  guarded<int>(0, nullptr, 0, [&] {
    static_cast<Message*>(message)->wait(std::chrono::microseconds(microseconds));
    return 0;
  });
}

// Frees a message that is done.
void oarlock_gloo_free(void* message) {
  guarded<int>(0, nullptr, 0, [&] {
    delete static_cast<Message*>(message);
    return 0;
  });
}

// Nothing more is sent to a rank.
void oarlock_gloo_half_close(void* of, int peer) {
  guarded<int>(0, nullptr, 0, [&] {
    static_cast<ProvedPair*>(static_cast<World*>(of)->context->getPair(peer).get())->half_close();
    return 0;
  });
}

}  // extern "C"
