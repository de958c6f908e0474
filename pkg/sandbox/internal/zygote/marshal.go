package zygote

import "encoding/binary"

// A request is in the format of Python's marshal module, in the part that has not changed since the first numbered
// version: every interpreter can read it before the first module is loaded, and it keeps bytes unchanged.

// list becomes a tuple. Its elements are int, []byte, string (as bytes) or list.
type list []any

// encode appends a value.
func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case int:
		if v == int(int32(v)) {
			return binary.LittleEndian.AppendUint32(append(b, 'i'), uint32(v))
		}
		return encodeLong(b, v)
	case []byte:
		b = binary.LittleEndian.AppendUint32(append(b, 's'), uint32(len(v)))
		return append(b, v...)
	case string:
		return encode(b, []byte(v))
	case list:
		b = binary.LittleEndian.AppendUint32(append(b, '('), uint32(len(v)))
		for _, e := range v {
			b = encode(b, e)
		}
		return b
	}
	panic("zygote: a value of this kind is in no request")
}

// encodeLong writes digits of 15 bits, their number negative for a negative value.
func encodeLong(b []byte, v int) []byte {
	var digits []uint16
	rest := uint64(v)
	if v < 0 {
		rest = -rest
	}
	for ; rest > 0; rest >>= 15 {
		digits = append(digits, uint16(rest&0x7fff))
	}
	count := int32(len(digits))
	if v < 0 {
		count = -count
	}
	b = binary.LittleEndian.AppendUint32(append(b, 'l'), uint32(count))
	for _, d := range digits {
		b = binary.LittleEndian.AppendUint16(b, d)
	}
	return b
}
