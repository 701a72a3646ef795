// Heads of up to 128 columns.
#include "hopper.h"

HOPPER_FORWARD(128, 128, false, 1)
