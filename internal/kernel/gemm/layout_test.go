package gemm

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssemblyKnowsTheTile compares the offsets that the assembly defines with those of the
// compiler.
func TestAssemblyKnowsTheTile(t *testing.T) {
	files, err := filepath.Glob("gemm_*.s")
	require.NoError(t, err)
	require.Len(t, files, 6)
	types := map[string]reflect.Type{"F32": reflect.TypeFor[tile[float32]](), "F64": reflect.TypeFor[tile[float64]]()}
	define := regexp.MustCompile(`(?m)^#define tile_([a-zA-Z]+?)(F32|F64)? (\d+)$`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		defined := define.FindAllStringSubmatch(string(source), -1)
		require.Len(t, defined, strings.Count(string(source), "#define"))
		for _, d := range defined {
			for name, typ := range types {
				if d[2] != "" && d[2] != name {
					continue
				}
				field, ok := typ.FieldByName(d[1])
				require.True(t, ok, "%s: %s", file, d[0])
				require.Equal(t, d[3], strconv.Itoa(int(field.Offset)), "%s: %s", file, d[0])
			}
		}
	}
}
