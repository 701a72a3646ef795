// Heads of up to 64 columns, in float16.
#define HALF f16
#include "flash.h"

FLASH(flash64f16, 64, 64)
