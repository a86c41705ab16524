// Three types that headers of Gloo name, for Debian's libgloo-dev, which leaves out the header that declares them. They have the
// layout of the library's: a pointer of the standard library each, to an object that its user owns.
#pragma once

#include <memory>

namespace gloo {

// A member of UnboundBuffer, whose constructor and destructor are the library's.
template <typename T>
class ShareableNonOwningPtr {
 public:
  explicit ShareableNonOwningPtr(T* object);
  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ~ShareableNonOwningPtr();

 private:
  std::shared_ptr<T> layout_;
};

// A member of Pair's operations, which are made empty here and filled in the library.
template <typename T>
class WeakNonOwningPtr {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& of);

  // The object, if it is still there; it stays as long as the result.
  std::shared_ptr<T> lock() const { return layout_.lock(); }

 private:
  std::weak_ptr<T> layout_;
};

// What a pair holds while it uses a buffer.
template <typename T>
class NonOwningPtr {
 public:
  NonOwningPtr() = default;
  explicit NonOwningPtr(const WeakNonOwningPtr<T>& of) : layout_(of.lock()) {}

  explicit operator bool() const { return layout_ != nullptr; }

 private:
  std::shared_ptr<T> layout_;
};

}  // namespace gloo
