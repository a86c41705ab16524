// Three types that headers of Gloo name, for Debian's libgloo-dev, which leaves out the header that declares them. Their members
// are used inside the library only, so what is here is their layout: one pointer each.
#pragma once

#include <memory>

namespace gloo {

// Named in signatures.
template <typename T>
class NonOwningPtr;

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

 private:
  std::weak_ptr<T> layout_;
};

}  // namespace gloo
