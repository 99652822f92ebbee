// The guard around faulthandler's handler, by which a fault inside of it ends only the answer.
//
// SIGURG -> answer: have SIGSEGV come here | faulthandler's handler | SIGSEGV as before
//             leave: (SIGSEGV meanwhile) go back to answer, as if the handler had returned
//
// faulthandler gives no further answers after one that was left.
#include "record/answer.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace commlib::record {
namespace {

std::atomic_flag busy;
std::atomic<long> answering{0};  // the thread
sigjmp_buf before;
struct sigaction handler;  // faulthandler's
struct sigaction faults;   // what the program does on SIGSEGV

void leave(int signal) {
  if (answering.load() == syscall(SYS_gettid)) siglongjmp(before, 1);
  sigaction(signal, &faults, nullptr);  // another thread's: it faults again, and the program has it
}

void answer(int signal) {
  if (busy.test_and_set()) return;
  const int error = errno;
  struct sigaction guard = {};
  guard.sa_handler = leave;
  answering.store(syscall(SYS_gettid));
  sigaction(SIGSEGV, &guard, &faults);
  if (sigsetjmp(before, 1) == 0) handler.sa_handler(signal);
  sigaction(SIGSEGV, &faults, nullptr);
  answering.store(0);
  errno = error;
  busy.clear();
}

}  // namespace

void guard_answers() {
  struct sigaction current;
  if (sigaction(SIGURG, nullptr, &current) != 0 || current.sa_flags & SA_SIGINFO) return;
  if (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN ||
      current.sa_handler == answer)
    return;
  handler = current;
  current.sa_handler = answer;
  sigaction(SIGURG, &current, nullptr);
}

}  // namespace commlib::record
