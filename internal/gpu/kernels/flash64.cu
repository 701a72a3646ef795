// Heads of up to 64 columns.
#include "flash.h"

FLASH(64, 64)
