// Heads of up to 64 columns, in float16.
#define HALF f16
#include "hopper.h"

HOPPER_FORWARD(hopper64f16, 64, 64, true, 2)
HOPPER_BACKWARD(hopper64f16, 64, 64, true, true)
