package mesh

import (
	"encoding/binary"
	"errors"
	"strconv"
)

// page is the records of some consecutive ranks, as a part of the roll. Texts that several ranks
// share, such as the host, are in it once. Encoded, big-endian:
//
//	bytes 0..4   the first rank
//	bytes 4..6   number of ranks
//	bytes 6..8   number of texts
//	2 bytes      for every field of every rank: which text it is
//	2 bytes      for every text: where it ends, from the beginning of the first
//	the texts
type page string

const (
	pageHeader = 8
	pageRanks  = 256 // at most; fewer if their texts are long
)

// The fields of a record that are in a page: the fields that others need of a rank that is not
// near, in the order of fields.
const (
	fieldHost = iota
	fieldName
	fieldPID
	fieldNonce
	fieldTCP
	fieldUnix
	fieldNote
	pageFields
)

func (r *record) fields() [pageFields]string {
	return [...]string{r.Host, r.Name, strconv.Itoa(r.PID), r.Nonce, r.TCP, r.Unix, r.Note}
}

// pagesOf returns pages of consecutive records, beginning with rank first. Each fits a message.
func pagesOf(list []record, first int) []page {
	if len(list) > pageRanks {
		return append(pagesOf(list[:pageRanks], first), pagesOf(list[pageRanks:], first+pageRanks)...)
	}
	var texts, ends, rows []byte
	index := map[string]uint16{}
	for _, who := range list {
		for _, text := range who.fields() {
			i, known := index[text]
			if !known {
				i = uint16(len(index))
				index[text] = i
				texts = append(texts, text...)
				ends = binary.BigEndian.AppendUint16(ends, uint16(len(texts)))
			}
			rows = binary.BigEndian.AppendUint16(rows, i)
		}
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(first))
	b = binary.BigEndian.AppendUint16(b, uint16(len(list)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(index)))
	b = append(append(append(b, rows...), ends...), texts...)
	if half := len(list) / 2; len(b) > MaxMessage && half > 0 {
		return append(pagesOf(list[:half], first), pagesOf(list[half:], first+half)...)
	}
	return []page{page(b)}
}

var errPage = errors.New("protocol error: malformed list of ranks")

// readPage checks a page of a job of size ranks.
func readPage(b []byte, size int) (page, error) {
	p := page(b)
	if len(p) < pageHeader || p.count() == 0 || p.first() > size-p.count() || len(p) < p.textsAt() {
		return "", errPage
	}
	for at := pageHeader; at < p.endsAt(); at += 2 {
		if p.number(at) >= p.texts() {
			return "", errPage
		}
	}
	for i := range p.texts() {
		if lo, hi := p.bounds(i); lo > hi || hi > len(p) {
			return "", errPage
		}
	}
	return p, nil
}

func (p page) number(at int) int { return int(p[at])<<8 | int(p[at+1]) }
func (p page) first() int        { return p.number(0)<<16 | p.number(2) }
func (p page) count() int        { return p.number(4) }
func (p page) end() int          { return p.first() + p.count() }
func (p page) texts() int        { return p.number(6) }
func (p page) endsAt() int       { return pageHeader + 2*pageFields*p.count() }
func (p page) textsAt() int      { return p.endsAt() + 2*p.texts() }

// bounds returns where text i is.
func (p page) bounds(i int) (lo, hi int) {
	if i > 0 {
		lo = p.number(p.endsAt() + 2*(i-1))
	}
	return p.textsAt() + lo, p.textsAt() + p.number(p.endsAt()+2*i)
}

// field returns a field of the i-th rank.
func (p page) field(i, field int) string {
	lo, hi := p.bounds(p.number(pageHeader + 2*(pageFields*i+field)))
	return string(p[lo:hi])
}
