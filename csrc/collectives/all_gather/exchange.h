// stage (or offer) my block | copy everyone's block to its place
#pragma once

#include "shm/group.h"

namespace commlib::shm {

void all_gather_blocks(Group& group, const Call& call, bool offers);

}  // namespace commlib::shm
