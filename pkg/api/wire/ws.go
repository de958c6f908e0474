package wire

import "encoding/json"

// Subprotocol is what a WebSocket client of /v1/runs/{id}/ws has to offer. All messages are JSON texts.
//
//	client → server   {"type":"stdin","data":"…","encoding":"base64"}    bytes for standard input; encoding is left out for text
//	                  {"type":"stdin_close"}                             its end
//	                  {"type":"signal","signal":"SIGINT"}                for the program
//	                  {"type":"resize","rows":24,"cols":80}              of its terminal
//	                  {"type":"cancel"}                                  end the run
//	server → client   {"seq":…,"kind":…,…}                               each event, as --format ndjson prints it; the last has kind "result"
//	                  {"kind":"error","problem":{…}}                     in place of the result: why there is none, or why a message was refused
//	                  {"kind":"ack","bytes":N}                           so many bytes of stdin were taken in all
//
// Events come from ?from=SEQ on, by default all that are kept. A client that takes none holds the program up, as a pipe would. One that sends
// stdin faster than the program reads is itself held up: the server reads on once there is room.
//
// The server closes with 1000 after the last event, 1001 when it drains, 1008 for what is against the protocol, and 1011 when it failed.
const Subprotocol = "sandbox-run.v1"

// Types of messages from clients.
const (
	MessageStdin      = "stdin"
	MessageStdinClose = "stdin_close"
	MessageSignal     = "signal"
	MessageResize     = "resize"
	MessageCancel     = "cancel"
)

// Message is what a client sends.
type Message struct {
	Type     string `json:"type"`
	Data     string `json:"data,omitempty"`
	Encoding string `json:"encoding,omitempty"` // "base64"; text without
	Signal   string `json:"signal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Cols     uint16 `json:"cols,omitempty"`
}

// Kinds of lines and messages that are no events.
const (
	KindError = "error"
	KindAck   = "ack"
	KindGap   = "gap"
	// KindReceipt comes after the result, if a receipt was asked for.
	KindReceipt = "receipt"
)

// Notice is what a stream says besides its events. It has no sequence number of its own.
//
//	{"kind":"gap","from":7,"to":4711}    these events are no longer kept; those after them follow
//	{"kind":"error","problem":{…}}       there is no result, and this is why
type Notice struct {
	Kind    string          `json:"kind"`
	Problem *Problem        `json:"problem,omitempty"`
	From    uint64          `json:"from,omitempty"`
	To      uint64          `json:"to,omitempty"`
	Bytes   uint64          `json:"bytes,omitempty"`
	Receipt json.RawMessage `json:"receipt,omitempty"`
}

// NoticeOf reads a line that is no event; it is nil for one that is.
func NoticeOf(line []byte) *Notice {
	var n Notice
	if json.Unmarshal(line, &n) != nil {
		return nil
	}
	switch n.Kind {
	case KindError, KindAck, KindGap, KindReceipt:
		return &n
	}
	return nil
}
