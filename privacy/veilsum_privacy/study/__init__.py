"""What everyone agreed on before anybody looked at data: the signed study, the dataset's schema, the encoder."""
