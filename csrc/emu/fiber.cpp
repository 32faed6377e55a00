#include "emu/fiber.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define DFC_EMU_ASAN 1
#else
#define DFC_EMU_ASAN 0
#endif

// -DDFC_EMU_UCONTEXT takes the portable switch on x86-64 too, to test it.
#if defined(__x86_64__) && !defined(DFC_EMU_UCONTEXT)
#define DFC_EMU_SWITCH 1
#else
#define DFC_EMU_SWITCH 0
#include <ucontext.h>
#endif

namespace dfc {
namespace emu {

namespace {

constexpr size_t kStackBytes = DFC_EMU_ASAN ? 512 << 10 : 128 << 10;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kSpan = kStackBytes + kGuardBytes;

char* stacks = nullptr;
size_t num_stacks = 0;

char* stack_of(size_t index) { return stacks + index * kSpan + kGuardBytes; }

// A thread that runs out of stack hits the page below it: say so before the process dies.
void on_fault(int number, siginfo_t* info, void*) {
  const char* place = static_cast<const char*>(info->si_addr);
  const bool ours = stacks != nullptr && place >= stacks && place < stacks + num_stacks * kSpan;
  if (ours && static_cast<size_t>(place - stacks) % kSpan < kGuardBytes) {
    static const char text[] = "emulator: an emulated thread ran out of stack (too many local variables)\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
  }
  signal(number, SIG_DFL);
}

void watch_faults() {
  static char alternate[64 << 10];
  stack_t own_stack{};
  own_stack.ss_sp = alternate;
  own_stack.ss_size = sizeof alternate;
  sigaltstack(&own_stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

void reserve_stacks(size_t count) {
  if (count > num_stacks) {
    if (stacks == nullptr && !DFC_EMU_ASAN) watch_faults();
    if (stacks != nullptr) munmap(stacks, num_stacks * kSpan);
    void* memory =
        mmap(nullptr, count * kSpan, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    stacks = static_cast<char*>(memory);
    num_stacks = count;
    for (size_t i = 0; i < count; ++i) mprotect(stacks + i * kSpan, kGuardBytes, PROT_NONE);
  }
#if DFC_EMU_ASAN
  for (size_t i = 0; i < count; ++i) __asan_unpoison_memory_region(stack_of(i), kStackBytes);
#endif
}

#if DFC_EMU_SWITCH

// Saves the registers that a call must preserve on the old stack, takes those of the new one.
extern "C" void dfc_emu_switch(void** save, void* load);
asm(R"(
.text
.type dfc_emu_switch,@function
dfc_emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size dfc_emu_switch,.-dfc_emu_switch
)");

void prepare(Fiber& fiber, size_t index, void (*entry)()) {
  auto* top = reinterpret_cast<uintptr_t*>(stack_of(index) + kStackBytes);
  *--top = 0;  // where a return address would be: keeps the stack aligned as after a call
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber.saved = top;
}

static void resume(Fiber& from, Fiber& to) { dfc_emu_switch(&from.saved, to.saved); }

void release(Fiber& fiber) { fiber.saved = nullptr; }

#else

static ucontext_t* context_of(Fiber& fiber) {
  if (fiber.saved == nullptr) fiber.saved = calloc(1, sizeof(ucontext_t));
  return static_cast<ucontext_t*>(fiber.saved);
}

void prepare(Fiber& fiber, size_t index, void (*entry)()) {
  ucontext_t* context = context_of(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = stack_of(index);
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

static void resume(Fiber& from, Fiber& to) { swapcontext(context_of(from), context_of(to)); }

void release(Fiber& fiber) {
  free(fiber.saved);
  fiber.saved = nullptr;
}

#endif

#if DFC_EMU_ASAN
static const void* main_stack(size_t& bytes) {
  static thread_local void* bottom = nullptr;
  static thread_local size_t size = 0;
  if (bottom == nullptr) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &size);
    pthread_attr_destroy(&attributes);
  }
  bytes = size;
  return bottom;
}
#endif

void switch_fiber(Fiber& from, Fiber& to, long to_index, bool leaving) {
#if DFC_EMU_ASAN
  void* fake_stack = nullptr;
  size_t bytes = kStackBytes;
  const void* bottom = to_index < 0 ? main_stack(bytes) : stack_of(static_cast<size_t>(to_index));
  __sanitizer_start_switch_fiber(leaving ? nullptr : &fake_stack, bottom, bytes);
  resume(from, to);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  (void)to_index;
  (void)leaving;
  resume(from, to);
#endif
}

void enter_fiber() {
#if DFC_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace emu
}  // namespace dfc
