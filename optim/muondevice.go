package optim

import "github.com/gofsdp/gofsdp/optim/vec"

// On a device Muon works on vec.MuonVec. A matrix that the rank has by itself does not leave the
// device. Ranks exchange matrices in memory of the host, in the same buffers as there. Products are
// the device's, so bits depend on it, but not on the number of ranks.

// muonVecs returns the values of params if a device has all of them, or nil.
func muonVecs(params []Param) []vec.MuonVec {
	values := make([]vec.MuonVec, len(params))
	found := false
	for i, p := range params {
		if _, host := p.withVecs().Value.(vec.Addressable); host && lenOf(p.Value) == 0 {
			continue
		} else if v, ok := p.Value.(vec.MuonVec); !host && ok && !vec.Is16(p.Value) {
			values[i], found = v, true
		} else {
			return nil
		}
	}
	if !found {
		return nil
	}
	return values
}

// allocRooms allocates the memory of each team for one matrix at a time. It counts as state.
func (u *muon) allocRooms(params []Param) error {
	for _, t := range u.teams {
		largest := 0
		var with *Param
		for i := range t.jobs {
			j := &t.jobs[i]
			if largest = max(largest, j.rows*j.cols); with == nil && u.device[j.piece] != nil {
				with = &params[j.piece]
			}
		}
		if with == nil {
			continue
		}
		v, err := with.newState(largest)
		if err != nil {
			return err
		}
		t.x = v.(vec.MuonVec)
	}
	return nil
}

// shared reports whether the matrices of the team are on several ranks, or on the host.
func (t *muonTeam) shared(u *muon) bool { return u.device == nil || t.size > 1 }

// of returns the first n elements of the memory for a matrix.
func (t *muonTeam) of(n int) vec.MuonVec { return t.x.Slice(0, n).(vec.MuonVec) }

// direct updates the momentum of elements [from, from + n) of a piece, and returns their direction.
func (t *muonTeam) direct(u *muon, p *piece, from, n int) (vec.MuonVec, error) {
	x := t.of(n)
	return x, x.Momentum(p.Grad.Slice(from, from+n), p.vecs[0].Slice(from, from+n), u.s.Momentum, u.s.Nesterov)
}

// orthogonalize replaces a matrix in the memory of the team.
func (t *muonTeam) orthogonalize(x vec.MuonVec, rows, cols int, eps float64) error {
	return x.Orthogonalize(rows, cols, vec.MuonStep{Steps: t.steps, Eps: eps, A: nsA, B: nsB, C: nsC})
}

// descendOnDevice makes the update of elements [from, from + n) of piece i, which belong to matrix
// j.
func (u *muon) descendOnDevice(t *muonTeam, j *muonJob, i int, p *piece, from, n int, decay, rate float64) error {
	x := t.of(n)
	var err error
	switch {
	case t.size == 1:
		if x, err = t.direct(u, p, from, n); err == nil {
			err = t.orthogonalize(x, j.rows, j.cols, u.s.Eps)
		}
	case t.float64s:
		err = x.Write(Host{F64: t.f64.mine[j.at : j.at+n]})
	default:
		err = x.Write(Host{F32: t.f32.mine[j.at : j.at+n]})
	}
	if err != nil {
		return err
	}
	return u.device[i].Slice(from, from+n).(vec.MuonVec).Descend(x, decay, rate)
}

// hostOf returns x as a Host.
func hostOf[T float32 | float64](x []T) Host {
	if list, ok := any(x).([]float64); ok {
		return Host{F64: list}
	}
	return Host{F32: any(x).([]float32)}
}

// onDevice sets the functions of a run for values on a device.
func (r *muonRun[T]) onDevice(u *muon) {
	r.direction = func(j *muonJob, to []T) error {
		p := &r.pieces[j.piece]
		x, err := r.direct(u, p, j.start+j.here.Start-p.Offset, len(to))
		if err != nil {
			return err
		}
		return x.Read(hostOf(to))
	}
	r.whole = func(x []T, rows, cols int) ([]T, error) {
		on := r.of(len(x))
		err := on.Write(hostOf(x))
		if err == nil {
			err = r.orthogonalize(on, rows, cols, u.s.Eps)
		}
		if err != nil {
			return nil, err
		}
		return x, on.Read(hostOf(x))
	}
}

// onHost sets the functions of a run for values in ordinary memory, which elements returns.
func (r *muonRun[T]) onHost(u *muon, elements func(Vec) []T) {
	r.direction = func(j *muonJob, to []T) error {
		p := &r.pieces[j.piece]
		from := j.start + j.here.Start - p.Offset
		momentum(to, elements(p.Grad)[from:], elements(p.vecs[0])[from:], T(u.s.Momentum), u.s.Nesterov)
		return nil
	}
	r.whole = func(x []T, rows, cols int) ([]T, error) { return r.scratch.run(x, rows, cols, r.steps, u.s.Eps), nil }
}
