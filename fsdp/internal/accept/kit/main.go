package kit

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and requires that no goroutines are left. If FSDP_TEST_DEVICE is
// "far" or "gpu", their models compute on that device in place of the processor. It skips examples
// that need features the device lacks.
func Main(m *testing.M, examples map[string]Need) {
	if _, ok := missing[device]; !ok {
		panic("FSDP_TEST_DEVICE is " + device + ", want far or gpu")
	}
	if err := skipExamples(examples); err != nil {
		panic(err)
	}
	switch device {
	case "far":
		UseFarDevice()
	case "gpu":
		os.Setenv("FSDP_DOUBLE_NCCL_TREE", "1") // sums over ranks add in the host's order: strategies have the same bits
		UseGPU()
		os.Exit(m.Run()) // models that tests do not close have goroutines there
	}
	goleak.VerifyTestMain(m)
}
