package mdc

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// fetchAhead is how many identifiers are left when the next sequence is asked for: at 30,000 creates per second half a
// second's worth, many commits of the MDT.
const fetchAhead = 16 << 10

// newFID takes the next identifier. It waits for the MDT only when both sequences are used up.
func (m *MDC) newFID(ctx context.Context) (fid.FID, error) {
	for {
		m.seqMu.Lock()
		if m.next.OID >= m.end.OID && m.spare != 0 {
			m.next = fid.FID{Seq: m.spare, OID: 1}
			m.end = fid.FID{Seq: m.spare, OID: fid.Width}
			m.spare = 0
		}
		left := m.end.OID - m.next.OID
		if left < fetchAhead && m.spare == 0 && m.fetching == nil {
			m.fetching = make(chan struct{})
			go m.fetchSeq(m.fetching)
		}
		if left > 0 {
			f := m.next
			m.next.OID++
			m.seqMu.Unlock()
			return f, nil
		}
		wait := m.fetching
		m.seqMu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return fid.FID{}, ctx.Err()
		}
		if err := m.closes.context().Err(); err != nil {
			return fid.FID{}, fmt.Errorf("mdc: new file identifier: %w", err)
		}
	}
}

// fetchSeq asks the MDT for a sequence. It ends with the MDC: its context is the queue's.
func (m *MDC) fetchSeq(done chan struct{}) {
	var p wirepb.SeqReply
	_, err := m.call(m.closes.context(), wire.OpSeq, nil, &p, nil)
	seq := fid.Seq(p.First)
	if err == nil && (seq < fid.SeqFirst || seq > fid.SeqLast) {
		err = status.Errorf(status.Protocol, "mdc: the MDT gave sequence %#x", p.First)
	}
	if err != nil && m.closes.context().Err() == nil {
		m.log.Error("no file identifiers from the MDT", "err", err)
	}
	m.seqMu.Lock()
	if err == nil {
		m.spare = seq
	}
	m.fetching = nil
	m.seqMu.Unlock()
	close(done)
}
