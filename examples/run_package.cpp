// Predict with a package that `pna export --format aoti` wrote, without Python:
//
//     run_package model.aoti.pt2 [cpu|cuda] < batches > predictions
//
// A batch is the number of tensors, then the tensors in the order of the package's description,
// each as its type (int64, float32 or float64), number of axes, axes, and numbers. Predictions are
// written in the same way, one batch for each batch.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iostream>
#include <limits>
#include <string>
#include <vector>

static at::Tensor read() {
  std::string type;
  int64_t axes = 0;
  std::cin >> type >> axes;
  std::vector<int64_t> shape(axes);
  for (auto& size : shape) std::cin >> size;
  auto tensor = at::empty(shape, type == "int64" ? at::kLong : at::kDouble);
  for (int64_t i = 0; i < tensor.numel(); i++) {
    if (type == "int64")
      std::cin >> tensor.data_ptr<int64_t>()[i];
    else
      std::cin >> tensor.data_ptr<double>()[i];
  }
  return type == "float32" ? tensor.to(at::kFloat) : tensor;
}

static void write(const at::Tensor& tensor) {
  auto flat = tensor.to(at::kCPU, at::kDouble).contiguous();
  std::cout << "float64 " << flat.dim();
  for (auto size : flat.sizes()) std::cout << ' ' << size;
  for (int64_t i = 0; i < flat.numel(); i++) std::cout << ' ' << flat.data_ptr<double>()[i];
  std::cout << '\n';
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: run_package model.aoti.pt2 [cpu|cuda] < batches\n";
    return 2;
  }
  c10::InferenceMode no_gradients;
  const c10::Device device(argc > 2 ? argv[2] : "cpu");
  torch::inductor::AOTIModelPackageLoader package(argv[1]);
  std::cerr << package.get_metadata()["pna"] << '\n';  // the description, as JSON
  std::cout.precision(std::numeric_limits<double>::max_digits10);
  size_t count = 0;
  while (std::cin >> count) {
    std::vector<at::Tensor> inputs;
    while (inputs.size() < count) inputs.push_back(read().to(device));
    const auto outputs = package.run(inputs);
    std::cout << outputs.size() << '\n';
    for (const auto& output : outputs) write(output);
  }
}
