// Heads of up to 128 columns.
#include "hopper.h"

HOPPER_FORWARD(hopper128, 128, 128, false, 1)
HOPPER_BACKWARD(hopper128, 128, 64, true, false)
