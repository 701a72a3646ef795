// Heads of up to 128 columns, in float16.
#define HALF f16
#include "flash.h"

FLASH(flash128f16, 128, 32)
