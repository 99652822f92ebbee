// stage (or offer) the blocks of the others | copy my block of everyone's input
#pragma once

#include "shm/group.h"

namespace commlib::shm {

void all_to_all_blocks(Group& group, const Call& call, bool offers);

}  // namespace commlib::shm
