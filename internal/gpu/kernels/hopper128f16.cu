// Heads of up to 128 columns, in float16.
#define HALF f16
#include "hopper.h"

HOPPER_FORWARD(hopper128f16, 128, 128, false, 1)
HOPPER_BACKWARD(hopper128f16, 128, 64, true, false)
