// the root stages (or offers) its tensor | the others copy it
#pragma once

#include "shm/group.h"

namespace commlib::shm {

void broadcast_tensor(Group& group, const Call& call, bool offers);

}  // namespace commlib::shm
