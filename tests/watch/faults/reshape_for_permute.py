pictures = torch.rand(4, 12, 12, 3)
model = nn.Conv2d(3, 4, 3)
model(pictures.reshape(4, 3, 12, 12))  # found # repaired: model(pictures.permute(0, 3, 1, 2))
