// Heads of up to 128 columns.
#include "hopper.h"

HOPPER_FORWARD(128, 128, false, 1)
HOPPER_BACKWARD(128, 64, true, false)
