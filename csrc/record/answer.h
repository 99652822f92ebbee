// Threads write their Python stacks in a signal's handler, Python's faulthandler:
// commlib/debug/stacks.py.
#pragma once

namespace commlib::record {

// Has the process outlive an answer that reads what the thread was just about to change: a frame
// which is half made, in one of some thousand answers of a thread that runs Python. Call it once
// faulthandler has the signal; more often does nothing.
void guard_answers();

}  // namespace commlib::record
