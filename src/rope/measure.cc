#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <optional>
#include <string>

#include "inferscale/rope.h"

namespace inferscale {
namespace {

using Complex = std::complex<double>;

// Angles below this at the farthest probe are lost in a cache's rounding and taken for no rotation.
constexpr double kLeastAngle = 3e-4;
// f16 keeps its relative precision down to about here; a weaker pair says nothing about its angle.
constexpr double kLeastElement = 64.0 / (1 << 24);

struct PairPlace {
  std::size_t x, y;
};

class Measurement {
 public:
  Measurement(std::span<const RopeProbe> probes, std::int32_t layers, std::int32_t kv_heads,
              std::int32_t key_dim)
      : probes_(probes),
        layers_(static_cast<std::size_t>(layers)),
        heads_(static_cast<std::size_t>(kv_heads)),
        dim_(static_cast<std::size_t>(key_dim)),
        rounding_(Rounding()) {}

  Result<RopeSpec> Run() {
    FindMovingLayers();
    spec_.layer_group.assign(layers_, -1);
    if (last_moving_ == 0) return spec_;
    if (last_moving_ > dim_ / 2 * 2) {
      return Unsupported("RoPE: the last of " + std::to_string(dim_) +
                         " key elements moves and has no partner");
    }
    ChoosePairs();
    INFERSCALE_RETURN_IF_ERROR(GroupLayers());
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      INFERSCALE_RETURN_IF_ERROR(FitGroup(g));
    }
    INFERSCALE_RETURN_IF_ERROR(CheckFit());
    DropUnmovedPairs();
    return spec_;
  }

 private:
  float At(std::size_t probe, std::size_t layer, std::size_t head, std::size_t element) const {
    return probes_[probe].keys[(layer * heads_ + head) * dim_ + element];
  }

  Complex PairAt(std::size_t probe, std::size_t layer, std::size_t head, PairPlace place) const {
    return {At(probe, layer, head, place.x), At(probe, layer, head, place.y)};
  }

  double Distance(std::size_t probe) const {
    return static_cast<double>(probes_[probe].position) - probes_[0].position;
  }

  double FarthestDistance() const { return Distance(probes_.size() - 1); }

  std::size_t Pairs() const { return static_cast<std::size_t>(spec_.width / 2); }

  PairPlace PlaceOf(std::size_t pair) const { return PlaceOf(spec_.pairing, Pairs(), pair); }

  static PairPlace PlaceOf(RopePairing pairing, std::size_t pairs, std::size_t pair) {
    if (pairing == RopePairing::kInterleaved) return {2 * pair, 2 * pair + 1};
    return {pair, pair + pairs};
  }

  // Unit roundoff of the cache, seen in the bits that its numbers never use.
  double Rounding() const {
    std::uint32_t used = 0;
    for (const RopeProbe& probe : probes_) {
      for (const float key : probe.keys) used |= std::bit_cast<std::uint32_t>(key);
    }
    if ((used & 0xffffu) == 0) return std::ldexp(1.0, -9);   // bf16
    if ((used & 0x1fffu) == 0) return std::ldexp(1.0, -11);  // f16
    return std::ldexp(1.0, -24);
  }

  // Elements that no rotation touches are the same at every position: the engine computes one token
  // alone, so nothing but the rotation depends on where it stands.
  bool Moves(std::size_t layer, std::size_t element) const {
    for (std::size_t head = 0; head < heads_; ++head) {
      double energy = 0;
      for (std::size_t d = 0; d < dim_; ++d) {
        energy += static_cast<double>(At(0, layer, head, d)) * At(0, layer, head, d);
      }
      const double still = 0.5 * rounding_ * std::sqrt(energy / static_cast<double>(dim_));
      const double before = At(0, layer, head, element);
      for (std::size_t p = 1; p < probes_.size(); ++p) {
        const double after = At(p, layer, head, element);
        const double larger = std::max(std::abs(before), std::abs(after));
        if (std::abs(after - before) > 4 * rounding_ * larger + still) return true;
      }
    }
    return false;
  }

  void FindMovingLayers() {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      std::size_t end = dim_;
      while (end > 0 && !Moves(layer, end - 1)) --end;
      if (end > 0) moving_.push_back(layer);
      last_moving_ = std::max(last_moving_, end);
    }
  }

  // How far the lengths of pairs are from being kept, relative to the keys.
  double LengthDefect(RopePairing pairing, std::size_t pairs) const {
    double defect = 0, energy = 0;
    for (const std::size_t layer : moving_) {
      for (std::size_t head = 0; head < heads_; ++head) {
        for (std::size_t i = 0; i < pairs; ++i) {
          const PairPlace place = PlaceOf(pairing, pairs, i);
          const double length = std::abs(PairAt(0, layer, head, place));
          energy += length * length;
          for (std::size_t p = 1; p < probes_.size(); ++p) {
            const double change = std::abs(PairAt(p, layer, head, place)) - length;
            defect += change * change;
          }
        }
      }
    }
    return energy > 0 ? std::sqrt(defect / energy) : 0;
  }

  // A rotation keeps the length of every pair, and any other way of pairing does not. Slow pairs at
  // the end look unmoved: interleaved pairs may be left out then, but with halves the partner of
  // the first element depends on the width, so each is tried.
  void ChoosePairs() {
    const std::size_t least = (last_moving_ + 1) / 2;
    spec_.pairing = RopePairing::kInterleaved;
    std::size_t best_pairs = least;
    double best = LengthDefect(RopePairing::kInterleaved, least);
    for (std::size_t pairs = least; pairs <= dim_ / 2; ++pairs) {
      const double defect = LengthDefect(RopePairing::kHalf, pairs);
      if (defect >= 0.5 * best) continue;
      best = defect;
      best_pairs = pairs;
      spec_.pairing = RopePairing::kHalf;
    }
    spec_.width = static_cast<std::int32_t>(2 * best_pairs);
  }

  // Mean turn of a pair between the first and each other probe, of length 1 for a true rotation;
  // nullopt when the token's keys are too small there to tell. \return [probes - 1]
  std::optional<std::vector<Complex>> Turns(std::size_t layer, PairPlace place) const {
    double energy = 0;
    std::vector<Complex> turns(probes_.size() - 1);
    for (std::size_t head = 0; head < heads_; ++head) {
      const Complex start = PairAt(0, layer, head, place);
      energy += std::norm(start);
      for (std::size_t p = 1; p < probes_.size(); ++p) {
        turns[p - 1] += PairAt(p, layer, head, place) * std::conj(start);
      }
    }
    if (energy < kLeastElement * kLeastElement) return std::nullopt;
    for (Complex& turn : turns) turn /= energy;
    return turns;
  }

  // Unwraps phases: the frequency known so far predicts the next angle to well within half a turn,
  // because distances grow by at most four times. The first distance is one position.
  double Frequency(const std::vector<Complex>& turns) const {
    double weighted = 0, weight = 0;
    for (std::size_t p = 1; p < probes_.size(); ++p) {
      const double distance = Distance(p);
      double angle = std::arg(turns[p - 1]);
      if (weight > 0) {
        const double turns_missed = (weighted / weight * distance - angle) / (2 * std::numbers::pi);
        angle += 2 * std::numbers::pi * std::round(turns_missed);
      }
      weighted += distance * angle;
      weight += distance * distance;
    }
    return weighted / weight;
  }

  double GroupTolerance() const { return 0.01 + 16 * rounding_; }

  Status GroupLayers() {
    std::vector<std::vector<std::optional<double>>> representatives;
    for (const std::size_t layer : moving_) {
      std::vector<std::optional<double>> frequencies(Pairs());
      for (std::size_t i = 0; i < Pairs(); ++i) {
        if (const auto turns = Turns(layer, PlaceOf(i))) frequencies[i] = Frequency(*turns);
      }
      std::size_t group = 0;
      while (group < representatives.size() && !Agree(representatives[group], frequencies)) ++group;
      if (group == representatives.size()) {
        if (group == kMaxGroups) {
          return Unsupported(
              "RoPE: the keys of layer " + std::to_string(layer) +
              " turn unlike those of all other layers; they are not plain rotations");
        }
        representatives.push_back(frequencies);
        spec_.groups.push_back({std::vector<double>(Pairs())});
      }
      for (std::size_t i = 0; i < Pairs(); ++i) {
        if (!representatives[group][i]) representatives[group][i] = frequencies[i];
      }
      spec_.layer_group[layer] = static_cast<std::int32_t>(group);
    }
    return OkStatus();
  }

  bool Agree(const std::vector<std::optional<double>>& a,
             const std::vector<std::optional<double>>& b) const {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] && b[i] && std::abs(*a[i] - *b[i]) * FarthestDistance() > GroupTolerance())
        return false;
    }
    return true;
  }

  Status FitGroup(std::size_t group) {
    for (std::size_t i = 0; i < Pairs(); ++i) {
      std::vector<Complex> sum(probes_.size() - 1);
      bool known = false;
      std::size_t some_layer = 0;
      for (const std::size_t layer : moving_) {
        if (spec_.layer_group[layer] != static_cast<std::int32_t>(group)) continue;
        some_layer = layer;
        const auto turns = Turns(layer, PlaceOf(i));
        if (!turns) continue;
        known = true;
        for (std::size_t p = 0; p < sum.size(); ++p) sum[p] += (*turns)[p];
      }
      if (!known) {
        return Unsupported("RoPE: pair " + std::to_string(i) + " of layer " +
                           std::to_string(some_layer) +
                           " is zero in the probed token's keys; probe another token");
      }
      const double frequency = Frequency(sum);
      const bool moved = std::abs(frequency) * FarthestDistance() >= kLeastAngle;
      spec_.groups[group].inverse_frequency[i] = moved ? frequency : 0.0;
    }
    return OkStatus();
  }

  // Every pair of every layer must be where its group's frequency puts it, up to the cache's
  // rounding and the f32 angles of the engine.
  Status CheckFit() const {
    for (const std::size_t layer : moving_) {
      const auto group = static_cast<std::size_t>(spec_.layer_group[layer]);
      for (std::size_t i = 0; i < Pairs(); ++i) {
        const PairPlace place = PlaceOf(i);
        const double frequency = spec_.groups[group].inverse_frequency[i];
        for (std::size_t p = 1; p < probes_.size(); ++p) {
          double difference = 0, energy = 0;
          for (std::size_t head = 0; head < heads_; ++head) {
            const Complex start = PairAt(0, layer, head, place);
            energy += std::norm(start);
            difference += std::norm(PairAt(p, layer, head, place) -
                                    std::polar(1.0, frequency * Distance(p)) * start);
          }
          const double tolerance = 1e-3 + 8 * rounding_ + 5e-7 * Distance(p) * std::abs(frequency);
          const double allowed = tolerance * std::sqrt(energy) +
                                 kLeastElement / 16 * std::sqrt(static_cast<double>(heads_));
          if (std::sqrt(difference) > allowed) return NotARotation(layer, i, p, difference, energy);
        }
      }
    }
    return OkStatus();
  }

  Status NotARotation(std::size_t layer, std::size_t pair, std::size_t probe, double difference,
                      double energy) const {
    const double percent = energy > 0 ? 100 * std::sqrt(difference / energy) : 100;
    return Unsupported(
        "RoPE: the keys of layer " + std::to_string(layer) + ", pair " + std::to_string(pair) +
        " at position " + std::to_string(probes_[probe].position) + " are " +
        std::to_string(static_cast<int>(std::min(percent, 1e6)) + 1) +
        " % away from a rotation of those at position " + std::to_string(probes_[0].position));
  }

  void DropUnmovedPairs() {
    if (spec_.pairing != RopePairing::kInterleaved) return;
    const auto last_is_zero = [](const RopeGroup& group) {
      return group.inverse_frequency.back() == 0.0;
    };
    while (spec_.width > 2 && std::all_of(spec_.groups.begin(), spec_.groups.end(), last_is_zero)) {
      for (RopeGroup& group : spec_.groups) group.inverse_frequency.pop_back();
      spec_.width -= 2;
    }
  }

  static constexpr std::size_t kMaxGroups = 8;

  std::span<const RopeProbe> probes_;
  const std::size_t layers_, heads_, dim_;
  const double rounding_;
  std::vector<std::size_t> moving_;  // layers whose keys depend on the position
  std::size_t last_moving_ = 0;      // one past the last element that moves in any layer
  RopeSpec spec_;
};

}  // namespace

Result<RopeSpec> MeasureRope(std::span<const RopeProbe> probes, std::int32_t layers,
                             std::int32_t kv_heads, std::int32_t key_dim) {
  if (layers <= 0 || kv_heads <= 0 || key_dim <= 0) {
    return InvalidArgument("RoPE: layers, KV heads and head elements must be positive");
  }
  if (probes.size() < 3) return InvalidArgument("RoPE: at least three probes are needed");
  const unsigned __int128 size = static_cast<unsigned __int128>(layers) *
                                 static_cast<unsigned>(kv_heads) * static_cast<unsigned>(key_dim);
  for (std::size_t p = 0; p < probes.size(); ++p) {
    if (probes[p].keys.size() != size) {
      return InvalidArgument("RoPE: probe " + std::to_string(p) + " has " +
                             std::to_string(probes[p].keys.size()) +
                             " numbers, not layers x heads x elements");
    }
    if (!std::all_of(probes[p].keys.begin(), probes[p].keys.end(),
                     [](float key) { return std::isfinite(key); })) {
      return Unsupported("RoPE: the keys at position " + std::to_string(probes[p].position) +
                         " hold a number that is not finite");
    }
    if (p == 0) continue;
    const std::int64_t distance = std::int64_t{probes[p].position} - probes[0].position;
    const std::int64_t before = std::int64_t{probes[p - 1].position} - probes[0].position;
    if (p == 1 ? distance != 1 : distance <= before || distance > 4 * before) {
      return InvalidArgument(
          "RoPE: probes must stand 1, then at most 4 times as far each, from the "
          "first one");
    }
  }
  return Measurement(probes, layers, kv_heads, key_dim).Run();
}

}  // namespace inferscale
