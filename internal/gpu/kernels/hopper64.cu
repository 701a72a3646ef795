// Heads of up to 64 columns.
#include "hopper.h"

HOPPER_FORWARD(hopper64, 64, 64, true, 2)
HOPPER_BACKWARD(hopper64, 64, 64, true, true)
