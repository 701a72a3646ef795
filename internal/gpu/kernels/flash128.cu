// Heads of up to 128 columns.
#include "flash.h"

FLASH(128, 32)
