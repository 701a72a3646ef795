// Heads of up to 64 columns.
#include "hopper.h"

HOPPER_FORWARD(64, 64, true, 2)
HOPPER_BACKWARD(64, 64, true, true)
