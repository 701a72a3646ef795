package observe_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

func TestMain(m *testing.M) { kit.Main(m, nil) }
