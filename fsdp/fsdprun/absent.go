package main

import (
	"strings"

	"github.com/gofsdp/gofsdp/internal/text"
)

// giveUp takes note of why a host does not take part. It may come back.
func (m *meeting) giveUp(host int, why string) {
	if m.gaveUp == nil {
		m.gaveUp = make(map[int]string)
	}
	m.gaveUp[host] = why
	m.say(why)
}

// silence says why a host may be absent that has not said why, "" if there is none.
func (m *meeting) silence() string {
	for host := range m.hosts {
		if m.members[host] == nil && m.gaveUp[host] == "" {
			return "; a host that says nothing has not started fsdprun, cannot reach -rdzv, or has no secret or another " +
				"(give the same -secret-file or FSDP_SECRET everywhere): the output of its fsdprun says which"
		}
	}
	return ""
}

// absent lists the hosts that are not here, and why as far as they have said it.
func (m *meeting) absent() string {
	var absent []int
	var why strings.Builder
	for host := range m.hosts {
		if m.members[host] == nil {
			absent = append(absent, host)
			if m.gaveUp[host] != "" {
				why.WriteString("; " + m.gaveUp[host])
			}
		}
	}
	return text.Numbered("host", absent) + why.String()
}
