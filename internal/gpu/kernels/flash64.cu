// Heads of up to 64 columns.
#include "flash.h"

FLASH(flash64, 64, 64)
