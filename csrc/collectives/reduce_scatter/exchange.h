// stage (or offer) the blocks of the others | reduce my block of everyone's input
#pragma once

#include "shm/group.h"

namespace commlib::shm {

void reduce_scatter_blocks(Group& group, const Call& call, bool offers);

}  // namespace commlib::shm
