// What plugins call: everything else is hidden.
#pragma once

#define COMMLIB_API __attribute__((visibility("default")))
