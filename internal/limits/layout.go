package limits

// The numbers of shim/record.h.
const (
	limitsMagic = 0x314d494c47555047 // "GPUGLIM1"
	regionMagic = 0x3147455247555047 // "GPUGREG1"
	version     = 1
	page        = 4096
	slots       = 1024
	counted     = 1 << 31 // in the head's Slots: every process counts the changes of its slot

	// MaxDevices is the most devices that one grant can have under the shim.
	MaxDevices = 16
)

// device is struct record_device.
type device struct {
	UUID     [16]byte
	Bytes    uint64
	Overhead uint64
	Share    uint64
	Gate     uint64
	Context  uint64
	_        uint64
}

// limitRecord is struct record_limits.
type limitRecord struct {
	Magic      uint64
	Version    uint32
	Devices    uint32
	ID         uint64
	Generation uint64
	Beat       uint64
	_          [3]uint64
	Device     [MaxDevices]device
}

// head is struct record_head.
type head struct {
	Magic    uint64
	Version  uint32
	Devices  uint32
	ID       uint64
	Slots    uint32
	SlotSize uint32
	_        [4]uint64
	High     uint32
	_        uint32
}

// slot is struct record_slot.
type slot struct {
	Used   [MaxDevices]uint64
	PID    uint32
	Claims uint32
	_      [7]uint64
}

const (
	slotSize   = 192
	regionSize = page + slots*slotSize
)
