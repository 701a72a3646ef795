// Heads of up to 128 columns.
#include "flash.h"

FLASH(flash128, 128, 32)
