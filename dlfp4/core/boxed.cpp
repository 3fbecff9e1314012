// Exceptions of Python, raised through PyTorch's dispatcher.
#include <Python.h>

#include "boxed.h"

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

// Declared as in pybind11, whose translators in PyTorch call set_error of any class that is derived from this one.
namespace pybind11 {
class builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;
};
}  // namespace pybind11

namespace dlfp4 {
namespace {

int (*run_kernel)(uint64_t *stack, dlfp4_stage stage) = nullptr;

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

struct Fetched {  // an exception of Python, with its type and traceback
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;

  Fetched() {
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
  }
  Fetched(const Fetched &) = delete;
  Fetched &operator=(const Fetched &) = delete;
  ~Fetched() {
    WithGil gil;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }

  std::string text() const {  // for those who know C++ alone
    PyObject *said = value != nullptr ? PyObject_Str(value) : nullptr;
    const char *found = said != nullptr ? PyUnicode_AsUTF8(said) : nullptr;
    std::string made = found != nullptr ? found : "an exception of Python";
    PyErr_Clear();
    Py_XDECREF(said);
    return made;
  }
};

}  // namespace

class Raised final : public pybind11::builtin_exception {
 public:
  explicit Raised(std::shared_ptr<Fetched> fetched)
      : builtin_exception(fetched->text()), fetched_(std::move(fetched)) {}

  void set_error() const override {
    PyErr_Restore(Py_XNewRef(fetched_->type), Py_XNewRef(fetched_->value), Py_XNewRef(fetched_->traceback));
  }

 private:
  std::shared_ptr<Fetched> fetched_;  // of all copies of the exception
};

namespace {

template <dlfp4_stage stage>
void call_with_gil(uint64_t *stack, uint64_t, uint64_t) {
  WithGil gil;
  if (run_kernel(stack, stage) != 0) throw Raised(std::make_shared<Fetched>());
}

}  // namespace
}  // namespace dlfp4

extern "C" dlfp4_boxed_kernel dlfp4_boxed(dlfp4_stage stage, int (*run)(uint64_t *stack, dlfp4_stage stage)) {
  dlfp4::run_kernel = run;
  return stage == DLFP4_AUTOGRAD ? dlfp4::call_with_gil<DLFP4_AUTOGRAD> : dlfp4::call_with_gil<DLFP4_BELOW_AUTOGRAD>;
}

extern "C" const uint64_t *dlfp4_keys_of_thread(void *library) {
  static thread_local const uint64_t *keys = nullptr;
  if (keys == nullptr) {  // c10::impl::raw_local_dispatch_key_set
    keys = static_cast<const uint64_t *>(dlsym(library, "_ZN3c104impl26raw_local_dispatch_key_setE"));
  }
  return keys;
}

extern "C" int dlfp4_delete_value(uint64_t *value) {
  delete value;
  return 0;
}
