package kit

import (
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// skipped is a test that remembers why it was skipped.
type skipped struct {
	testing.TB
	why string
}

func (s *skipped) Helper()                          {}
func (s *skipped) Skipf(format string, args ...any) { s.why = fmt.Sprintf(format, args...) }

// TestNeeds meets needs on each device. The processor meets them all.
func TestNeeds(t *testing.T) {
	was, skip := device, flag.Lookup("test.skip").Value.String()
	defer func() {
		device = was
		require.NoError(t, flag.Set("test.skip", skip))
	}()
	for on, want := range map[string][2]string{
		"":    {"", ""},
		"far": {"", "^ExampleB$"},
		"gpu": {`device "gpu" does not meet the need: ` + string(FakeTime), "^ExampleA$|^ExampleB$"},
	} {
		device = on
		s := new(skipped)
		Needs(s, FakeTime)
		require.Equal(t, want[0], s.why)
		require.NoError(t, flag.Set("test.skip", ""))
		require.NoError(t, skipExamples(map[string]Need{"ExampleA": Processor, "ExampleB": HostMemory}))
		require.Equal(t, want[1], flag.Lookup("test.skip").Value.String())
	}
	require.NoError(t, flag.Set("test.skip", "Long"))
	device = "far"
	require.NoError(t, skipExamples(map[string]Need{"ExampleB": HostMemory}))
	require.Equal(t, "Long|^ExampleB$", flag.Lookup("test.skip").Value.String(), "what -skip names stays")
}
